"""The diffs of checkpoints that a host copies to the store, for readers on other machines."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec
import structlog

from kingdom.errors import KingdomError, Transient, describe_error
from kingdom.soldiers.checkouts.run_checkouts import CheckoutSpec, RunCheckouts
from kingdom.soldiers.redaction import Redaction
from kingdom.soldiers.transcripts.copied_text import MARGIN_BYTES, cut_into_pieces
from kingdom.storage.run_texts import RunTexts

DIFF_BYTES_MAX = 1 << 20
_PAUSE_SECONDS = 0.5
_STORE_SECONDS = 60.0
_PIECES_AT_ONCE = 64
_log = structlog.get_logger("kingdom.soldiers")

# What a checkpoint is compared with: the start of the run, or the checkpoint before.
DiffBase = Literal["base", "previous"]


class CheckpointDiff(msgspec.Struct, frozen=True, kw_only=True):
    """The changes in a checkout between two commits. `is_cut` means that the end of the diff is not stored."""

    since: str
    until: str
    diff: str = ""
    is_cut: bool = False


async def copy_diffs(
    texts: RunTexts,
    checkouts: RunCheckouts,
    redaction: Redaction,
    run: str,
    checkpoint_id: str,
    trees: Sequence[CheckoutSpec],
    commits: Mapping[str, str],
    earlier: Mapping[str, str],
) -> None:
    """Copy the diffs of a new checkpoint to the store. `earlier` has the commits of the checkpoint before.

    The diffs come from the clones of this host, which agents cannot write. If the store does not answer, each diff is
    retried for a minute. This delays nothing else: the reply about the checkpoint needs the store too.
    """
    for tree in trees:
        try:
            base = await checkouts.base_commit(tree)
            sides: dict[DiffBase, str] = {"base": base, "previous": earlier.get(tree.id, base)}
            for side, since in sides.items():
                if side == "base" or since != base:
                    found = await _make_diff(checkouts, redaction, tree, since, commits[tree.id])
                    await _store(texts, run, _name(checkpoint_id, tree.id, side), found)
        except (KingdomError, TimeoutError) as error:
            _log.warning(
                "the diff of a checkpoint is not stored", checkpoint=checkpoint_id, error=describe_error(error)
            )


async def read_diff(
    texts: RunTexts, run: str, checkpoint_id: str, tree_id: str, side: DiffBase
) -> CheckpointDiff | None:
    """Return the stored diff of a checkpoint in one checkout, or None if there is none.

    Without an earlier checkpoint, the diff since `previous` is the diff since the base.
    """
    sides: tuple[DiffBase, ...] = ("previous", "base") if side == "previous" else ("base",)
    for each in sides:
        pieces = await texts.read(run, _name(checkpoint_id, tree_id, each), 0, _PIECES_AT_ONCE)
        if pieces:
            head, _, diff = b"".join(piece.content for piece in pieces).partition(b"\n")
            known = msgspec.json.decode(head, type=CheckpointDiff)
            return msgspec.structs.replace(known, diff=diff.decode(errors="replace"), is_cut=pieces[-1].is_cut)
    return None


async def _make_diff(
    checkouts: RunCheckouts, redaction: Redaction, tree: CheckoutSpec, since: str, until: str
) -> CheckpointDiff:
    """Return a diff without secrets. It is cut after the redaction, so no part of a secret is left before the cut."""
    text = await checkouts.diff_commits(tree, since, until, DIFF_BYTES_MAX + MARGIN_BYTES)
    excess = max(len(text.encode()) - DIFF_BYTES_MAX, 0)
    redacted = (await asyncio.to_thread(redaction.text, text)).encode()
    kept = redacted[: len(redacted) - excess].decode(errors="ignore")
    return CheckpointDiff(since=since, until=until, diff=kept, is_cut=excess > 0)


async def _store(texts: RunTexts, run: str, name: str, found: CheckpointDiff) -> None:
    head = msgspec.json.encode({"since": found.since, "until": found.until}) + b"\n"
    data = head + found.diff.encode()
    # If the data fill the room exactly, `cut_into_pieces` marks the last piece as cut.
    pieces = list(cut_into_pieces(data, 0, len(data) if found.is_cut else len(data) + 1))
    async with asyncio.timeout(_STORE_SECONDS):
        while True:
            try:
                await texts.append(run, name, pieces)
            except Transient as error:
                _log.warning("the diff of a checkpoint cannot be stored, trying again", error=str(error))
                await asyncio.sleep(_PAUSE_SECONDS)
            else:
                return


def _name(checkpoint_id: str, tree_id: str, side: DiffBase) -> str:
    return f"diff/{checkpoint_id}/{tree_id}/{side}"
