"""The discovery service: nodes register, pools find nodes, and invites wait for their nodes."""
