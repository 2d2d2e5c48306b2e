package main

import (
	"encoding/json"
	"net/http"
	"os"
	"strings"
)

// complete is an initialiser: it gives a new pod without the label licence the first line of licences.txt. Asked about
// its own result, it changes nothing.
func complete(w http.ResponseWriter, r *http.Request) {
	var review admissionReview
	err := json.NewDecoder(http.MaxBytesReader(w, r.Body, 8<<20)).Decode(&review)
	text, fileErr := os.ReadFile("licences.txt")
	licences := strings.Fields(string(text))
	if err != nil || fileErr != nil || review.Request == nil || len(licences) == 0 {
		http.Error(w, "not an AdmissionReview, or no licences.txt", http.StatusBadRequest) // a failure
		return
	}
	answer := map[string]any{"uid": review.Request.UID, "allowed": true}
	if labels := review.Request.Object.Metadata.Labels; labels["licence"] == "" {
		add := map[string]any{"op": "add", "path": "/metadata/labels/licence", "value": licences[0]}
		if labels == nil {
			add["path"], add["value"] = "/metadata/labels", map[string]string{"licence": licences[0]}
		}
		patch, _ := json.Marshal([]any{add})
		answer["patch"], answer["patchType"] = patch, "JSONPatch"
	}
	_ = json.NewEncoder(w).Encode(map[string]any{
		"apiVersion": review.APIVersion, "kind": review.Kind, "response": answer,
	})
}
