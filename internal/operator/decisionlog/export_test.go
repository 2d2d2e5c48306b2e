package decisionlog

// QueueLimit is how many decisions may wait.
const QueueLimit = queueLimit

// A Sink is the destination of lines.
type Sink = sink

// OpenWith is Open with another function to open a file.
func OpenWith(o Options, open func(path string) (Sink, error)) (*Log, error) {
	return openWith(o, open)
}
