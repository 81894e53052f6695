"""Results as files for other programs, pictures, pages and exported steps."""
