// Package decisionlog implements the log of decisions: a file with one line of JSON for each decision. With it,
// operators can find out which pods used an image, which pods were refused it, and why. A decision never waits for the
// log.
//
// # Version 1
//
// A line is an object with the fields in docs/decision-log.md and no others. Within a version, fields may be added, but
// are never removed and never change their meaning. No field contains a credential.
//
// A call that policies deny has the verdict Reverify and the reason admission_denied. CreateContainer then has no line
// with Allow. If policies admit it, it has a line for each pod, container, image ID and content of the policies.
// RunPodSandbox has a line only if a finding is not Admit.
//
// Run writes the queued decisions, one write for each line, without a sync: a crash of the node may lose the last
// lines. Decisions that are dropped are counted, and the next line has their number. After a rotation lines go to the
// old file until Reopen. If the file was deleted, the next line creates it again.
package decisionlog
