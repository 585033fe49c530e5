"""The report of `ringmpi analyze`: one page that needs nothing from elsewhere, figures and tables beside it."""
