package release

import (
	"encoding/base64"
	"encoding/pem"
	"fmt"

	"github.com/pullgate/pullgate/internal/mechanics/program"
	"github.com/pullgate/pullgate/internal/mechanics/safetext"
)

// TestKeyFile is the public key in a release that was signed with a key made for the build.
const TestKeyFile = "TEST-KEY.pub"

// ProjectKey returns the public key of the project in PEM form, or nil if this program was built without it.
func ProjectKey() []byte {
	der, err := base64.StdEncoding.DecodeString(program.ReleaseKey)
	if err != nil || len(der) == 0 {
		return nil
	}
	return pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der})
}

// A Report is the result of VerifyDir.
type Report struct {
	// Version and Commit are what the release was built from, as its signed provenance says. They are empty if that is
	// missing or not valid.
	Version string `json:"version"`
	Commit  string `json:"commit"`
	// Key is the ID of the key that was used. TestKey is set if it came with the release, and so proves nothing about
	// where the release is from.
	Key     string `json:"key"`
	TestKey bool   `json:"testKey"`
	// Artifacts are the files that SHA256SUMS lists, and Platforms those of the image.
	Artifacts []Artifact `json:"artifacts"`
	Platforms []string   `json:"platforms"`
	// Problems are all that is wrong. The release is valid if there are none.
	Problems []Problem `json:"problems"`
}

// An Artifact is a file of a release.
type Artifact struct {
	Name   string `json:"name"`
	SHA256 string `json:"sha256"`
	Size   int64  `json:"size"`
}

// A Problem is what is wrong with a file, and what to do.
type Problem struct {
	File   string `json:"file"`
	What   string `json:"what"`
	Remedy string `json:"remedy"`
}

const getAgain = "get the whole release again from its origin; do not install it otherwise"

// maxProblem is how long a sentence of a problem is; names in a release can be long.
const maxProblem = 600

func (r *Report) problem(file string, err error) {
	remedy := program.HintOf(err)
	if remedy == "" {
		remedy = getAgain
	}
	r.Problems = append(r.Problems, Problem{
		safetext.ASCII(file, maxProblem), safetext.ASCII(err.Error(), maxProblem), remedy,
	})
}

func (r *Report) problemf(file, format string, args ...any) {
	r.problem(file, fmt.Errorf(format, args...))
}
