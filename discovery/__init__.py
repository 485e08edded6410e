"""Discovery service: nodes register, pools find them, and invites are kept until fetched."""
