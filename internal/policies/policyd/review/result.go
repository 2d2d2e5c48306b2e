package review

import (
	"maps"
	"slices"
	"strings"

	"k8s.io/api/imagepolicy/v1alpha1"

	"github.com/pullgate/pullgate/internal/mechanics/safetext"
	"github.com/pullgate/pullgate/internal/policies/policyfiles"
)

// maxAnnotations bounds the audit annotations that are kept of an answer: bytes of all keys and values. The cache keeps
// 1,024 answers.
const maxAnnotations = 8192

// A Result is what one backend says. The zero value denies.
type Result struct {
	// Answer is about all images. Its Reason and its Failure are one line of at most 1,024 bytes. It has a Reason only
	// if the backend denied.
	policyfiles.Answer
	// AuditAnnotations are what the backend wants to have in audit logs, at most 8 KiB. The keys have no prefix. The
	// caller must not modify the map.
	AuditAnnotations map[string]string
	// FailedOpen reports that the images are allowed because the backend did not answer.
	FailedOpen bool
	// Err is the error of Failure; nil if the backend did answer.
	Err error
}

// bounded returns what is kept of a status.
func bounded(s v1alpha1.ImageReviewStatus) v1alpha1.ImageReviewStatus {
	kept := v1alpha1.ImageReviewStatus{Allowed: s.Allowed}
	if !s.Allowed {
		kept.Reason = safetext.Line(s.Reason, safetext.Event)
	}
	size := 0
	for _, key := range slices.Sorted(maps.Keys(s.AuditAnnotations)) {
		if size += len(key) + len(s.AuditAnnotations[key]); size > maxAnnotations {
			break
		}
		if kept.AuditAnnotations == nil {
			kept.AuditAnnotations = map[string]string{}
		}
		// Copies, so that the document that they are a part of is not kept.
		kept.AuditAnnotations[strings.Clone(key)] = strings.Clone(s.AuditAnnotations[key])
	}
	return kept
}

// A cause is an error with a text that can be in logs and messages. The error itself can have text of a backend, such
// as names in its certificate.
type cause struct {
	error
	text string
}

// causeOf returns an error with such a text.
func causeOf(err error) error {
	return &cause{err, safetext.Line(strings.TrimPrefix(err.Error(), "review: "), safetext.Event)}
}

func (c *cause) Error() string { return c.text }

func (c *cause) Unwrap() error { return c.error }
