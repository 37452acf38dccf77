"""The errors of decoding JSON that another program wrote."""

import msgspec

UNREADABLE_JSON = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, OverflowError)
