"""Results as pictures, pages and files for other programs."""
