// Command review-backend is an image review backend: it allows images whose names begin with a word of the file
// approved.txt.
package main

import (
	"crypto/subtle"
	"encoding/json"
	"log"
	"net/http"
	"os"
	"slices"
	"strings"
	"time"
)

const breakGlass = "example.image-policy.k8s.io/break-glass"

type imageReview struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Spec       struct {
		Containers  []map[string]string `json:"containers"` // each has image
		Annotations map[string]string   `json:"annotations"`
		Namespace   string              `json:"namespace"`
	} `json:"spec"`
	Status struct {
		Allowed          bool              `json:"allowed"`
		Reason           string            `json:"reason,omitempty"`
		AuditAnnotations map[string]string `json:"auditAnnotations,omitempty"`
	} `json:"status"`
}

func review(w http.ResponseWriter, r *http.Request) {
	var review imageReview
	want, got := "Bearer "+os.Getenv("TOKEN"), r.Header.Get("Authorization")
	approved, err := os.ReadFile("approved.txt")
	if err != nil || subtle.ConstantTimeCompare([]byte(got), []byte(want)) != 1 {
		http.Error(w, "another token, or no approved.txt", http.StatusForbidden) // any status but 2xx is a failure
		return
	}
	err = json.NewDecoder(http.MaxBytesReader(w, r.Body, 1<<20)).Decode(&review)
	if err != nil || review.Kind != "ImageReview" {
		http.Error(w, "not an ImageReview", http.StatusBadRequest)
		return
	}
	denied := slices.IndexFunc(review.Spec.Containers, func(c map[string]string) bool {
		isOf := func(prefix string) bool { return strings.HasPrefix(c["image"], prefix) }
		return !slices.ContainsFunc(strings.Fields(string(approved)), isOf)
	})
	review.Status.Allowed = denied < 0
	if ticket := review.Spec.Annotations[breakGlass]; denied >= 0 && ticket != "" {
		review.Status.Allowed, review.Status.AuditAnnotations = true, map[string]string{"break-glass": ticket}
	} else if denied >= 0 {
		review.Status.Reason = review.Spec.Containers[denied]["image"] + " is not approved"
	}
	_ = json.NewEncoder(w).Encode(review)
}

func main() {
	server := &http.Server{Addr: os.Getenv("LISTEN"), Handler: http.HandlerFunc(review), ReadTimeout: 10 * time.Second}
	log.Fatal(server.ListenAndServeTLS("tls.crt", "tls.key"))
}
