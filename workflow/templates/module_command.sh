for ddp_ladder_file in "${LMOD_PKG:+$LMOD_PKG/init/bash}" "${MODULESHOME:+$MODULESHOME/init/bash}" \
  /etc/profile.d/{lmod,modules,z00_lmod}.sh /usr/share/{lmod/lmod,modules}/init/bash; do
  if ! declare -F module >/dev/null && [[ -r $ddp_ladder_file ]]; then . "$ddp_ladder_file"; fi
done
