"""Players that write: dialogues in words, and the models that answer in them."""
