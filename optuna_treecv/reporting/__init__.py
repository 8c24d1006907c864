"""The results of a study: data frames, figures, the dashboard and the command line."""
