package nodeenable

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strings"

	"github.com/pullgate/pullgate/internal/mechanics/program"
	"github.com/pullgate/pullgate/internal/operator/doctor"
)

// The first line of every file that this package writes ends with a checksum of the following lines.
const (
	signature      = "# Written by pullgatectl node enable, removed by pullgatectl node disable; checksum of the rest: "
	checksumDigits = 16
)

// ownership is the owner of a file.
type ownership int

const (
	absent ownership = iota
	ofOthers
	ours
	oursModified // by another program or person
)

// sign puts the first line before a body.
func sign(body string) []byte {
	return []byte(signature + checksum([]byte(body))[:checksumDigits] + "\n" + body)
}

func checksum(content []byte) string {
	sum := sha256.Sum256(content)
	return hex.EncodeToString(sum[:])
}

// ownerOf returns the owner of a file.
func ownerOf(h doctor.Host, file string) (ownership, error) {
	content, err := h.ReadFile(file)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return absent, nil
	case err != nil:
		return absent, err
	}
	line, body, _ := bytes.Cut(content, []byte("\n"))
	sum, ok := strings.CutPrefix(string(line), signature)
	switch {
	case !ok:
		return ofOthers, nil
	case sum != checksum(body)[:checksumDigits]:
		return oursModified, nil
	default:
		return ours, nil
	}
}

// Places of this package's files on a node.
func unitFile(n doctor.Kubelet) string {
	return path.Join("/etc/systemd/system", n.Unit.Name+".d", "90-pullgate.conf")
}

func kubeletFile(n doctor.Kubelet) string {
	return path.Join(n.Configured.ConfigDir, "90-pullgate.conf")
}

func rancherFile(n doctor.Kubelet) string { return n.RancherConfig + ".d/90-pullgate.yaml" }

// ownFiles returns where files of this package may be on a node.
func ownFiles(n doctor.Kubelet) []string {
	files := []string{unitFile(n)}
	if n.RancherConfig != "" {
		files = append(files, rancherFile(n))
	} else if n.Configured.ConfigDir != "" {
		files = append(files, kubeletFile(n))
	}
	return files
}

// A change is the new content of a file.
type change struct {
	path    string
	content []byte
	// lines are the replaced lines in a file of another owner; nil if this package wrote the whole file.
	lines []line
}

// planChange returns the change that makes the kubelet of a node dial endpoint, if it does not yet.
func planChange(h doctor.Host, n doctor.Kubelet, endpoint string) (change, error) {
	c := n.Configured
	switch {
	case n.Kind.Rancher():
		return change{path: rancherFile(n), content: sign(fmt.Sprintf(rancherBody, endpoint))}, nil
	case c.ConfigDir != "" && !c.FlagsSetEndpoint:
		return change{path: kubeletFile(n), content: sign(fmt.Sprintf(kubeletBody, endpoint))}, nil
	case n.Program == "kubelet":
		return change{path: unitFile(n), content: sign(fmt.Sprintf(unitBody, n.ExecStartFrom, n.ExecStart, endpoint))}, nil
	case c.FlagsSetEndpoint:
		return change{}, program.Hintf(fmt.Sprintf("have %s give the kubelet --container-runtime-endpoint=%s and no --image-service-endpoint, then restart %s", n.Program, endpoint, n.Unit.Name),
			"%s runs %s, a program of its own that gives the kubelet its endpoint as a flag, against which no file counts", n.Unit.Name, n.Program)
	case c.ConfigFile != "":
		return edit(h, c.ConfigFile, endpoint)
	default:
		return change{}, program.Hintf("have it give the kubelet --config, or the flag --container-runtime-endpoint="+endpoint,
			"%s runs %s, a program of its own, and the kubelet has no configuration file", n.Unit.Name, n.Program)
	}
}

const rancherBody = `# The flags of the kubelet; "+" adds them to those that other files give.
kubelet-arg+:
- container-runtime-endpoint=%[1]s
- image-service-endpoint=%[1]s
`

const kubeletBody = `apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
containerRuntimeEndpoint: %[1]s
imageServiceEndpoint: %[1]s
`

const unitBody = `[Unit]
Wants=pullgated.service
After=pullgated.service pullgated.socket

[Service]
# The command line of %[1]s
# with two flags more: the last flag counts, also against the kubelet's configuration file.
ExecStart=
ExecStart=%[2]s --container-runtime-endpoint=%[3]s --image-service-endpoint=%[3]s
`
