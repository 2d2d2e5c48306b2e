// Package decision is how the gate tells what it decided: one line in the journal, and the same facts to whoever
// keeps a log of decisions. No credential is among them, only credential IDs.
package decision
