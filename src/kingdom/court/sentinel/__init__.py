"""The Sentinel: notices what happens outside, each thing once."""
