// Package prose tells a judgement to an operator, in sentences that a colleague might write: by which rule, on what
// evidence, what a pod meets by it, and what would change it. Each sentence names the image, the Secret, the time or the
// command that it is about.
//
// It judges nothing and asks nobody: what it says of one case is always the same.
package prose
