package nodecreds

// SumOf is sumOf.
func SumOf(content []byte) string { return sumOf(content) }

// Stall makes readings hang until release is called.
func (c *Credentials) Stall() (release func()) {
	c.reading.Lock()
	return c.reading.Unlock
}
