"""The page that redeems an invite. Browsers do not send the fragment of an address: a script posts its secret."""

from aiohttp import web

from kingdom.web.pages.frame import html_response
from kingdom.web.route import ApiCall


async def show_sign_in(_call: ApiCall) -> web.Response:
    """Show the page that signs a person in."""
    return html_response("sign-in.html")
