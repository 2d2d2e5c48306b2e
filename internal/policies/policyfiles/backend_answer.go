package policyfiles

import (
	"fmt"
	"strings"
	"time"
)

// An Answer is what a backend, or its failure policy, says about an image.
type Answer struct {
	// Backend is the name of the backend, Image the name of the image as the pod has it; "" if the answer is about
	// several.
	Backend, Image string
	Allowed        bool
	// Reason is that of the backend; it can be "".
	Reason string
	// Failure says why there is no valid answer of the backend; "" if there is one.
	Failure string
	// Cached reports whether it is an earlier answer.
	Cached bool
	// Took is how long the backend was waited for.
	Took time.Duration
}

// String returns a sentence for users: which backend was asked, how long it took, and what follows. It is the same at
// the node and in the webhook.
func (a Answer) String() string {
	var b strings.Builder
	if a.Image != "" {
		fmt.Fprintf(&b, "image %q: ", a.Image)
	}
	took := a.Took.Round(time.Millisecond)
	follows := "denied"
	if a.Allowed {
		follows = "allowed"
	}
	if a.Failure != "" {
		if a.Allowed {
			follows += ", because its defaultAllow is not false"
		}
		fmt.Fprintf(&b, "no valid answer from the image review backend %s after %v: %s; %s", a.Backend, took, a.Failure, follows)
		return b.String()
	}
	fmt.Fprintf(&b, "%s by the image review backend %s", follows, a.Backend)
	if a.Cached {
		b.WriteString(" (cached)")
	} else {
		fmt.Fprintf(&b, " after %v", took)
	}
	if a.Reason != "" {
		b.WriteString(": " + a.Reason)
	}
	return b.String()
}
