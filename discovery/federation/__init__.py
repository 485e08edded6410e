"""Exchange with other discovery services: signed statements of nodes are pulled, invites are passed on."""
