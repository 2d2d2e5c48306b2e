// Command hook is a hook: it denies containers with an image of a vendor, unless the label licence of the pod is a line
// of the file licences.txt. Below /complete it is an initialiser.
package main

import (
	"context"
	"encoding/json"
	"log"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"time"
)

type admissionReview struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Request    *struct {
		UID    string `json:"uid"`
		Object struct {
			Metadata struct{ Labels, Annotations map[string]string }
			Spec     struct{ Containers, InitContainers, EphemeralContainers []struct{ Image string } }
		} `json:"object"`
	} `json:"request,omitempty"`
	Response map[string]any `json:"response,omitempty"`
}

func review(w http.ResponseWriter, r *http.Request) {
	var review admissionReview
	err := json.NewDecoder(http.MaxBytesReader(w, r.Body, 8<<20)).Decode(&review)
	licences, fileErr := os.ReadFile("licences.txt")
	if err != nil || fileErr != nil || review.Request == nil {
		http.Error(w, "not an AdmissionReview, or no licences.txt", http.StatusBadRequest) // a failure
		return
	}
	pod := review.Request.Object
	review.Response, review.Request = map[string]any{"uid": review.Request.UID, "allowed": true}, nil
	unknown := strings.Split(pod.Metadata.Annotations["policy.pullgate.dev/unknown-fields"], ",")
	licence, known := pod.Metadata.Labels["licence"], !slices.Contains(unknown, "metadata.labels")
	for _, c := range slices.Concat(pod.Spec.Containers, pod.Spec.InitContainers, pod.Spec.EphemeralContainers) {
		needed := c.Image == "" || strings.HasPrefix(c.Image, "registry.example/vendor/") // "" is not known
		if needed && (!known || licence == "" || !slices.Contains(strings.Fields(string(licences)), licence)) {
			review.Response["allowed"] = false
			review.Response["status"] = map[string]string{"message": c.Image + " needs a licence in the label licence"}
		}
	}
	_ = json.NewEncoder(w).Encode(review)
}

func main() {
	socket, err := new(net.ListenConfig).Listen(context.Background(), "unix", os.Getenv("LISTEN"))
	if err != nil {
		log.Fatal(err)
	}
	http.HandleFunc("/", review)
	http.HandleFunc("/complete", complete)
	log.Fatal((&http.Server{ReadTimeout: 10 * time.Second}).Serve(socket))
}
