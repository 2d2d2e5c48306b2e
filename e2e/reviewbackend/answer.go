package reviewbackend

import (
	"encoding/json"
	"maps"
	"net/http"
	"strings"

	"k8s.io/api/imagepolicy/v1alpha1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// An Answer is that about an image; the zero value allows. A review is allowed if all of its images are.
type Answer struct {
	Deny   bool
	Reason string // of a denial
	// Override is the key of an annotation that allows a denied image, such as x.image-policy.k8s.io/break-glass.
	Override         string
	AuditAnnotations map[string]string
	// Client restricts the answer to one client; others are allowed.
	Client string
	// Failure is sent instead of a review.
	Failure Failure
}

// A Failure is a way not to answer.
type Failure int

// The failures.
const (
	None            Failure = iota
	Hang                    // no answer at all
	TooManyRequests         // 429, with Retry-After: 1
)

// answerLocked returns the answer to a request: the failure or denial of one of its images, otherwise an allow.
func (b *Backend) answerLocked(r *Request) Answer {
	all := Answer{AuditAnnotations: map[string]string{}}
	var reasons []string
	for _, image := range r.Images() {
		a, ok := b.answers[image]
		if !ok {
			a = b.answers[""]
		}
		if a.Client != "" && a.Client != r.Client {
			continue
		}
		if all.Failure == None {
			all.Failure = a.Failure
		}
		maps.Copy(all.AuditAnnotations, a.AuditAnnotations)
		if _, override := r.Review.Spec.Annotations[a.Override]; a.Deny && (a.Override == "" || !override) {
			all.Deny = true
			reasons = append(reasons, a.Reason)
		}
	}
	all.Reason = strings.Join(reasons, "; ")
	return all
}

func (a *Answer) review() []byte {
	text, err := json.Marshal(v1alpha1.ImageReview{
		TypeMeta: metav1.TypeMeta{APIVersion: v1alpha1.SchemeGroupVersion.String(), Kind: "ImageReview"},
		Status:   v1alpha1.ImageReviewStatus{Allowed: !a.Deny, Reason: a.Reason, AuditAnnotations: a.AuditAnnotations},
	})
	if err != nil {
		panic(err) // texts and maps of texts
	}
	return text
}

func (a *Answer) send(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	text := a.review()
	switch a.Failure {
	case None:
		_, _ = w.Write(text)
	case Hang:
		<-r.Context().Done()
	case TooManyRequests:
		w.Header().Set("Retry-After", "1")
		w.WriteHeader(http.StatusTooManyRequests)
		_, _ = w.Write(text)
	}
}
