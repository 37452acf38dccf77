"""A GitHub App for tests: its key, and its installation on the stand-in."""

from functools import cache
from typing import Any

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from github import Auth

from tests.integration.standins.github import REPOSITORY, Site

APP, SLUG = 4711, "kingdom-app"
ACCOUNT = REPOSITORY.partition("/")[0]
PERMISSIONS = {
    "contents": "write",
    "pull_requests": "write",
    "issues": "write",
    "checks": "read",
    "statuses": "read",
    "actions": "read",
}


@cache
def app_key() -> str:
    """The private key of the App, which is made once per process."""
    return _new_key()


@cache
def other_key() -> str:
    """A private key that is not that of the App."""
    return _new_key()


def _new_key() -> str:
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    form = (serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL)
    return key.private_bytes(*form, serialization.NoEncryption()).decode()


def public_key(key: str) -> str:
    public = serialization.load_pem_private_key(key.encode(), None).public_key()
    return public.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo).decode()


async def install(site: Site, **more: Any) -> int:
    """Create the App, install it on the owner of the repository, and return the id of the installation."""
    await site.people("app", id=APP, slug=SLUG, public_key=public_key(app_key()))
    about = {"app": APP, "account": ACCOUNT, "permissions": PERMISSIONS, **more}
    made = await site.people("installation", **about)
    number: int = made["id"]
    return number


def authorization(installation: int, **permissions: str) -> Auth.AppInstallationAuth:
    """The official client's authorization of an installation."""
    return Auth.AppAuth(APP, app_key()).get_installation_auth(installation, permissions or None)
