"""Sites on whose nodes jobs that hardly slow each other down run together (docs/sharing.md)."""
