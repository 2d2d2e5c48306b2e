package cli

import (
	"fmt"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	adminv1 "github.com/pullgate/pullgate/proto/pullgate/admin/v1"
)

// A View contains the settings for text output.
type View struct {
	// Now is the time from which ages are computed.
	Now time.Time
	// WholeIDs prints whole IDs, not only their first 12 digits.
	WholeIDs bool
	// AbsoluteTimes prints times as dates, not as ages.
	AbsoluteTimes bool
}

// shortID is how many digits of an ID distinguish it from the others of a node, as in runtimes.
const shortID = 12

// ID returns an image ID or a credential ID.
func (v View) ID(id string) string {
	if v.WholeIDs {
		return id
	}
	digits := strings.TrimPrefix(id, "sha256:")
	return digits[:min(shortID, len(digits))]
}

// age returns a time for a table; "" if it is not known.
func (v View) age(t *timestamppb.Timestamp) string {
	switch {
	case t == nil:
		return ""
	case v.AbsoluteTimes:
		return v.date(t)
	default:
		return age(v.Now.Sub(t.AsTime()))
	}
}

// ago returns a time for a sentence: "3d4h ago", "at 2026-01-02T15:04:05Z", "in 20m"; "never" if there is none.
func (v View) ago(t *timestamppb.Timestamp) string {
	switch {
	case t == nil:
		return "never"
	case v.AbsoluteTimes:
		return "at " + v.date(t)
	case t.AsTime().After(v.Now):
		return "in " + age(t.AsTime().Sub(v.Now))
	default:
		return age(v.Now.Sub(t.AsTime())) + " ago"
	}
}

// lasting returns how long a state has lasted: "for 3d4h", "since 2026-01-02T15:04:05Z".
func (v View) lasting(t *timestamppb.Timestamp) string {
	switch {
	case t == nil:
		return "since an unknown time"
	case v.AbsoluteTimes:
		return "since " + v.date(t)
	default:
		return "for " + age(v.Now.Sub(t.AsTime()))
	}
}

func (View) date(t *timestamppb.Timestamp) string { return t.AsTime().UTC().Format(time.RFC3339) }

// podName returns the best known name of a pod.
func podName(p *adminv1.PodRef) string {
	switch {
	case p.GetName() != "":
		return p.GetNamespace() + "/" + p.GetName()
	case p.GetUid() != "":
		return "UID " + p.GetUid()
	default:
		return ""
	}
}

func secretName(s *adminv1.SecretRef) string {
	switch {
	case isNamespace(s):
		return "runtime for namespace " + s.GetNamespace()
	case s.GetName() == "":
		return ""
	}
	return s.GetNamespace() + "/" + s.GetName()
}

// isNamespace reports whether a reference means the credentials that the runtime itself holds for a namespace.
func isNamespace(s *adminv1.SecretRef) bool {
	return s.GetName() == "" && s.GetUid() == "" && s.GetNamespace() != ""
}

// Count returns a number with its noun.
func Count[N int | int64 | uint64](n N, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}
