// Package admission implements the chain of validators that decides whether a pod may have a sandbox or a container.
//
// A [Chain] asks its validators about a [Subject] and combines their findings. Deny outweighs Unverified, which outweighs Admit. A finding
// with the mark Audit is reported and counts for nothing. A validator that panics or returns no finding denies.
//
// The validators are not asked about pods that are exempt, and not about a container that its pod has started before from the same image,
// nor about a new sandbox for a pod that has started containers. So new policies stop no workload that runs, also after a reboot.
//
// The rules of a chain, its validators among them, are immutable and replaced as a whole: each decision uses either the old rules or the
// new ones.
package admission
