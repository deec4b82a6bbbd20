"""Google's Gemini API, native."""
