"""Dialogues: provers and verifiers exchange messages in rounds about labelled instances."""
