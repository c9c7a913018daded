"""What commands print: tables, progress and logs on a terminal."""
