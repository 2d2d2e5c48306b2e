// Package requirement implements what policies require of the signatures of images: requirements, the rules that apply
// them to images, and sets of such rules.
//
// A [Requirement] is a tree. Its leaves say that an image is signed with a key, or by an identity that a certificate
// names; an inner node says how many of its children must be met. [Requirement.Hash] identifies a requirement by what
// decides, so that a proof of it can be kept: names of policies and patterns of images are not part of the hash.
//
// A [Rule] requires something of the images of a policy's namespaces whose names match its patterns. [Set.For] returns
// the rules for an image; all of them must be met. [ImageRules.Judge] says what can be said without signatures:
// required digests, static authorities, and defaults for images without a rule. The gate and the webhook decide by it,
// and use its sentences, so that both give the same answer. A [Report] says which requirements an image meets.
//
// A policy here is a file with such rules; the verification policy of package policy says which images need a proof of
// access. A [Result] is about one requirement; that of a backend is policyclient.ReviewResult.
//
// Package policyfiles reads rules from files. This package verifies nothing and uses no network.
package requirement
