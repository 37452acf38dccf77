"""`kingdom mcp …`: manage the MCP servers that agents can call."""

import shlex
from typing import Annotated

import typer

from kingdom.cli.framework.command import CommandCall, command
from kingdom.cli.framework.inputs import attributes
from kingdom.cli.framework.json_result import array, one
from kingdom.soldiers.checkouts.repository import without_password
from kingdom.soldiers.mcp_check import answer_limit, check_mcp_server
from kingdom.views.registry import McpServerDetails, McpServerWithUsers, RegisteredMcpServer
from kingdom.workflow import registry
from kingdom.workflow.model.resources.mcp_server import McpServer, McpTransport
from kingdom.workflow.reactions import engine

app = typer.Typer(no_args_is_help=True, add_completion=False, help="Manage the MCP servers that agents can call.")
_Name = Annotated[str, typer.Argument(metavar="NAME", help="The name of an MCP server.")]


@command(app, "create", result=one(RegisteredMcpServer))
async def create(
    call: CommandCall,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Its name in Kingdom: lower-case letters, digits, - _ .")],
    *,
    program: Annotated[
        str,
        typer.Option("--command", help="The command that starts it; it runs in its own folder, so use absolute paths."),
    ] = "",
    url: Annotated[str, typer.Option(help="The address of a remote server.")] = "",
    transport: Annotated[
        McpTransport | None,
        typer.Option(case_sensitive=False, help="STDIO for a command; SSE or, by default, STREAMABLE_HTTP for a URL."),
    ] = None,
    env: Annotated[list[str] | None, typer.Option(help="An environment variable, NAME=VALUE; repeatable.")] = None,
    no_check: Annotated[bool, typer.Option("--no-check", help="Do not connect to it.")] = False,
) -> None:
    """Register an MCP server, after starting or calling it and asking for its tools.

    Example: kingdom mcp create files --command "npx -y @modelcontextprotocol/server-filesystem /srv/files"

    Example: kingdom mcp create search --url https://example.org/mcp

    JSON: {server: {id, name, transport, command, url, env: [name], deleted, deleting}, tools: [name]}; tools is null
    with --no-check.
    """
    if bool(program) == bool(url):
        raise typer.BadParameter("give either --command or --url.")
    server = McpServer(
        id=name,
        name=name,
        transport=transport or (McpTransport.STDIO if program else McpTransport.STREAMABLE_HTTP),
        command=_words(program),
        url=url,
        env=attributes(env or ()),
    )
    tools = None if no_check else await _list_tools(call, server)
    async with call.bus(engine()) as bus:
        server = await registry.register_mcp_server(bus, server, actor=call.settings.actor)
    if call.output.json:
        call.output.document(RegisteredMcpServer(server=_details_of(server), tools=tools))
    call.output.say(f"Registered MCP server {name}. Templates refer to it by this name.")
    if tools is not None:
        call.output.say(f"Its tools: {', '.join(tools) or 'none'}.")


@command(app, "list", result=array(McpServerDetails))
async def list_(call: CommandCall) -> None:
    """List every MCP server.

    Example: kingdom mcp list

    JSON: an array of {id, name, transport, command, url, env: [name], deleted, deleting}.
    """
    async with call.bus(engine(), create=False) as bus:
        servers = await registry.list_mcp_servers(bus, call.note_unreadable)
    if call.output.json:
        call.output.document([_details_of(server) for server in servers])
    elif servers:
        call.output.table(
            ("name", "transport", "where"), [(each.id, each.transport, _address_of(each)) for each in servers]
        )
    else:
        call.output.say("There are no MCP servers. Add one: kingdom mcp create NAME --command … or --url …")


@command(app, "show", result=one(McpServerWithUsers))
async def show(
    call: CommandCall,
    name: _Name,
    *,
    check: Annotated[bool, typer.Option("--check", help="Connect to it and show its tools.")] = False,
) -> None:
    """Show an MCP server, and the runs and templates that use it; the values of its environment stay hidden.

    Example: kingdom mcp show files --check

    JSON: {server: {id, name, transport, …}, users: {workflows: [id], templates: [id]}, tools: [name]}; tools is null
    without --check.
    """
    async with call.bus(engine(), create=False) as bus:
        server, users = await registry.show_mcp_server(bus, name, call.note_unreadable)
    tools = await _list_tools(call, server) if check else None
    if call.output.json:
        call.output.document(McpServerWithUsers(server=_details_of(server), users=users, tools=tools))
        return
    rows = {
        "name": server.id
        + (" (unregistered)" if server.deleted else " (being unregistered)" if server.deleting else ""),
        "transport": server.transport,
        "where": _address_of(server),
        "environment": ", ".join(sorted(server.env)) or None,
        "used by workflows": ", ".join(users.workflows) or None,
        "named by templates": ", ".join(users.templates) or None,
        "tools": "unknown, add --check" if tools is None else ", ".join(tools) or None,
    }
    call.output.table(("MCP server", ""), rows.items())


@command(app, "delete", result=one(McpServerDetails))
async def delete(call: CommandCall, name: _Name) -> None:
    """Unregister an MCP server, unless a run uses it; templates lose their references to it.

    Example: kingdom mcp delete files

    JSON: {id, name, transport, command, url, env: [name], deleted, deleting}.
    """
    async with call.bus(engine(), create=False) as bus:
        server = await registry.unregister_mcp_server(bus, name, actor=call.settings.actor)
    if call.output.json:
        call.output.document(_details_of(server))
    call.output.say(f"Unregistered MCP server {name}.")


async def _list_tools(call: CommandCall, server: McpServer) -> tuple[str, ...]:
    limit = answer_limit(server).total_seconds()
    with call.output.waiting(f"Asking {server.id} for its tools, for up to {limit:g} s: {_address_of(server)}"):
        return await check_mcp_server(server)


def _words(program: str) -> tuple[str, ...]:
    try:
        return tuple(shlex.split(program))
    except ValueError as error:
        raise typer.BadParameter(f"--command cannot be split into words: {error}.") from error


def _address_of(server: McpServer) -> str:
    return without_password(server.url) or shlex.join(server.command)


def _details_of(server: McpServer) -> McpServerDetails:
    return McpServerDetails(
        id=server.id,
        name=server.name,
        transport=server.transport,
        command=server.command,
        url=without_password(server.url),
        env=sorted(server.env),
        deleted=server.deleted,
        deleting=server.deleting,
    )
