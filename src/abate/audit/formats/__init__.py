"""What an audit prints: one file per format."""
