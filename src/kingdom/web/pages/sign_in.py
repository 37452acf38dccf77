"""The page that redeems an invite. The secret is in the fragment, which browsers do not send, so a script posts it."""

from aiohttp import web

from kingdom.web.pages.frame import html_response
from kingdom.web.route import ApiCall


async def show_sign_in(_call: ApiCall) -> web.Response:
    """Show the page that signs a person in."""
    return html_response("sign-in.html")
