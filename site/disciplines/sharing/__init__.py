"""Sites whose jobs share nodes if they hardly slow each other down (docs/sharing.md)."""
