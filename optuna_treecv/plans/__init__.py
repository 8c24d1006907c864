"""Parts of plans that several engines share."""
