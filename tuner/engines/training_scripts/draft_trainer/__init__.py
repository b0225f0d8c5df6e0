"""Trains drafts for one target: data from the target itself, four kinds of draft, checkpoints that engines load."""
