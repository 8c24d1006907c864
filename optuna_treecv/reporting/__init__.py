"""What a study found: data frames, figures, the dashboard, the command line."""
