"""What plans of several engines have in common."""
