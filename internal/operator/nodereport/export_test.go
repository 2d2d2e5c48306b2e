package nodereport

// MaxKept is how many rows are in memory.
const MaxKept = maxKept

// Rows returns the number of rows in memory.
func (r *Recorder) Rows() int { return len(r.rows) }
