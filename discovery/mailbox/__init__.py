"""Invites waiting for their nodes, and the long polls that fetch them."""
