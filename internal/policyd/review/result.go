package review

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
	"unicode"

	"k8s.io/api/imagepolicy/v1alpha1"
)

// Limits of what is kept of an answer. The cache keeps 1,024 answers.
const (
	maxReason      = 1024 // bytes; Kubernetes cuts the message of an event here
	maxAnnotations = 8192 // bytes of all keys and values
)

// A Result is what one backend says. The zero value denies.
type Result struct {
	// Backend is the name of the backend.
	Backend string
	// Allowed reports whether all images are allowed: by the backend, or if it did not answer, by its default.
	Allowed bool
	// Reason is that of a backend that denied: one line of at most 1,024 bytes. It can be "".
	Reason string
	// AuditAnnotations are what the backend wants to have in audit logs, at most 8 KiB. The keys have no prefix. The caller must not
	// modify the map.
	AuditAnnotations map[string]string
	// Cached reports whether this is an earlier answer.
	Cached bool
	// FailedOpen reports that the images are allowed because the backend did not answer.
	FailedOpen bool
	// Err says why the backend did not answer; nil if it did.
	Err error
	// Duration is the time that the caller waited.
	Duration time.Duration
}

// String returns a sentence for users: which backend was asked, how long it took, and what follows.
func (r Result) String() string {
	took := r.Duration.Round(time.Millisecond)
	switch {
	case r.FailedOpen:
		return fmt.Sprintf("no valid answer from the image review backend %s after %v: %v; allowed, because its defaultAllow is not false", r.Backend, took, r.Err)
	case r.Err != nil:
		return fmt.Sprintf("no valid answer from the image review backend %s after %v: %v; denied", r.Backend, took, r.Err)
	}
	text := "denied"
	if r.Allowed {
		text = "allowed"
	}
	text += " by the image review backend " + r.Backend
	if r.Cached {
		text += " (cached)"
	} else {
		text += fmt.Sprintf(" after %v", took)
	}
	if r.Reason != "" {
		text += ": " + r.Reason
	}
	return text
}

// Allowed reports whether all results allow, which they do if there is none.
func Allowed(results []Result) bool {
	return !slices.ContainsFunc(results, func(r Result) bool { return !r.Allowed })
}

// bounded returns what is kept of a status.
func bounded(s v1alpha1.ImageReviewStatus) v1alpha1.ImageReviewStatus {
	kept := v1alpha1.ImageReviewStatus{Allowed: s.Allowed}
	if !s.Allowed {
		kept.Reason = oneLine(s.Reason)
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

// oneLine returns at most maxReason bytes of a text, with a space for each character that cannot be printed.
func oneLine(s string) string {
	s = s[:min(len(s), 4*maxReason)] // the rest is not kept, so it is not converted
	s = strings.TrimSpace(strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return ' '
		}
		return r
	}, s))
	if len(s) > maxReason {
		s = strings.ToValidUTF8(s[:maxReason], "")
	}
	return strings.Clone(s)
}
