package policyfiles

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strings"
	"syscall"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/pullgate/pullgate/internal/mechanics/strictyaml"
)

const maxOther = 16 << 20

// readOther reads the file at a path; nil if the path is "".
func readOther(path string, anyOwner bool) ([]byte, error) {
	if path == "" {
		return nil, nil
	}
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0) // see readIn
	if err != nil {
		return nil, err
	}
	data, err := read(f, maxOther, anyOwner)
	if err != nil && !errors.As(err, new(*fs.PathError)) {
		err = fmt.Errorf("%s: %w", path, err)
	}
	return data, err
}

// nameLabel is a label that the API server sets on each namespace, to the name.
const nameLabel = "kubernetes.io/metadata.name"

// parseLabels reads the labels of namespaces by name. Each namespace gets nameLabel.
func parseLabels(path string, data []byte) (map[string]map[string]string, []error) {
	labels := map[string]map[string]string{}
	var d strictyaml.Decoder
	errs, err := d.Decode(data, &labels)
	if err != nil {
		errs = append(errs, err)
	}
	invalid := func(value, detail string, path ...string) {
		errs = append(errs, fmt.Errorf("[%s]: Invalid value: %q: %s", strings.Join(path, "]["), value, detail))
	}
	for _, ns := range slices.Sorted(maps.Keys(labels)) {
		for _, detail := range validation.IsDNS1123Label(ns) {
			invalid(ns, detail, ns)
		}
		if name, ok := labels[ns][nameLabel]; ok && name != ns {
			invalid(name, "must be the name of the namespace", ns, nameLabel)
		}
		if labels[ns] == nil {
			labels[ns] = map[string]string{}
		}
		labels[ns][nameLabel] = ns
		for _, key := range slices.Sorted(maps.Keys(labels[ns])) {
			for _, detail := range validation.IsQualifiedName(key) {
				invalid(key, detail, ns, key)
			}
			for _, detail := range validation.IsValidLabelValue(labels[ns][key]) {
				invalid(labels[ns][key], detail, ns, key)
			}
		}
	}
	errs = strictyaml.WithLines(data, errs)
	for i, err := range errs {
		errs[i] = fmt.Errorf("%s: %w", path, err)
	}
	return labels, errs
}
