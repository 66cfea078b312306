"""Reasons to doubt a point: one small pure function each, from `Evidence` to a `Reason` or None."""
