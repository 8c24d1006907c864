"""What trials have in common is trained once: names of models, and where they are kept."""
