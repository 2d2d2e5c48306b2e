// Package admission implements the chain of validators that decides whether a pod may have a sandbox or a container. It
// is the only package of policies that the gate itself imports.
//
// A [Chain] asks its validators about a [Subject] and combines their findings: Deny outweighs Unverified, and that
// outweighs Admit. Findings with Audit are only reported. A validator that panics or returns no finding denies.
//
// The validators are not asked about exempt pods, a container that its pod has started before from the same image, or
// a new sandbox for such a pod: new policies stop no workload that runs, also after a reboot.
//
// # Views of pods
//
// [Pod] and [Container] are the view that validators judge: the fields that policies can use and no others, so no
// environment variable, command or argument. CRI messages and a Pod of the API fill in what they know. Another field is
// unknown, which is the zero [Value], and satisfies no restriction. [Merge] completes the CRI with the API.
//
// A [Decision] is the answer of all policies; decisionlog.Decision is about a call of the CRI, tracker.Verdict about
// proofs. A [Login] is for a registry; credential.Credential is the sealed value whose ID a proof contains.
package admission
