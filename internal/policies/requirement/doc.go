// Package requirement implements what policies require of the signatures of images: requirements, the rules that apply
// them to images, and sets of such rules.
//
// [Requirement.Hash] identifies a requirement by what decides, so that a proof of it can be kept: names of policies and
// patterns of images are not part of the hash. [Set.For] returns the rules for an image; all of them must be met.
// [ImageRules.Judge] says what can be said without signatures: required digests, static authorities, and defaults for
// images without a rule. The gate and the webhook use it, so that both give the same answer.
//
// A policy here is a file with such rules; the verification policy of package policy says which images need a proof of
// access.
package requirement
