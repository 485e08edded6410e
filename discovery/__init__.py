"""Discovery: where nodes leave what they are, pools find them, and invites wait for the node that they are for."""
