"""Lists the dead letters of a queue by cause, drops those already deleted, exports what is no mail, and redrives others when asked."""
