"""The errors of decoding JSON that another program wrote."""

import msgspec

# All errors of decoding JSON that another program wrote.
UNREADABLE_JSON = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, OverflowError)
