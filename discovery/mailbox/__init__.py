"""Mailbox of invites for nodes, and the long polls with which nodes fetch them."""
